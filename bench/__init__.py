"""Benchmarks: Postbus beside a hand-written queue and the limits of the server, in one run.

bench/METHODOLOGY.md explains what is measured, and how.
"""
