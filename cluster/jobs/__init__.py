"""Batch jobs: one output line for each line of a file of problems or requests. A killed job can resume."""
