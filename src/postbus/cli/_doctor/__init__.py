"""The checks of `postbus doctor`. Each is a function that returns findings with remedies."""
