"""Benchmarks: Postbus beside a hand-written queue and beside the raw limit, in one run.

What is measured, and how, is written down in bench/METHODOLOGY.md.
"""
