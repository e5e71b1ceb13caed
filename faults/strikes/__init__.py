"""Strikes: functions that hurt a world while it works, one for each kind of fault."""
