"""The searches of one controller: places, deadlines, leak checks. Independent of HTTP and Ray Serve."""
