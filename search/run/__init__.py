"""One search while it runs: what drives it, what it asks of the ports, and what it reports."""
