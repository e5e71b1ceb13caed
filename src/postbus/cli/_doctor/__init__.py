"""The checks of `postbus doctor`. Each is a function, and says what to do about its findings."""
