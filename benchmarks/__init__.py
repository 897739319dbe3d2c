"""Benchmarks of treadle: verify, then time beside rivals. `python benchmarks/run.py --help`."""
