"""What an operator sees of a running application: metrics, traces, and a line in the log for each search."""
