"""Where untrusted code runs: a protocol (sandbox.py), three drivers, a provider."""
