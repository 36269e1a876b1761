"""What is checked and planned before an application starts, and on each of its nodes."""
