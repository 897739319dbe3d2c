"""Benchmarks of treadle: verify, then time beside baselines. `python benchmarks/run.py --help`."""
