"""Where a session's untrusted code runs: one protocol (sandbox.py), three drivers, a provider that starts and ends them (provider.py)."""
