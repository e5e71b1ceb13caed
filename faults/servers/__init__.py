"""Servers, and a network before them, that can be hurt."""

from __future__ import annotations


class NotInstalled(Exception):
    """This machine lacks what a fault needs; the text says what, and what would help."""
