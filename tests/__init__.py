"""The laws that every op is tested by, one file a law, over the inputs in cases.py."""
