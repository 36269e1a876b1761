"""What was built for a GPU, measured on one beside lock step, within ten minutes."""
