"""Builds treadle's binaries with ninja: what setup.py calls.

`host` looks at the machine and at torch, `cuda` at the toolkit, `graph` writes the ninja file,
`build` runs it and writes the build facts.
"""
