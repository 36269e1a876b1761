"""More than one machine, and the `banyan` command: routing, scaling, batch jobs, the HTTP client."""
