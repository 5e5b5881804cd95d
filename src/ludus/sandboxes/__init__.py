"""Where a session's untrusted code runs: a protocol (sandbox.py), three drivers, and a provider that starts them."""
