"""Benchmarks of treadle: verify, then time against baselines. `python benchmarks/run.py --help`."""
