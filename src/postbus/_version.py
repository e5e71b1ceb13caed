"""The version of this package: said here once."""

VERSION = "0.1.0"
