"""The `banyan` command and what it uses: HTTP client, batch jobs, evaluation, launch of an application."""
