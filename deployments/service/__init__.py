"""The searches of one controller: slots, deadlines, leak checks. Independent of HTTP and Ray Serve."""
