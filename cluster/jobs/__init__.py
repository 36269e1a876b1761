"""Batch jobs: a file of problems or of requests in, a line for each out, whatever happens in between."""
