"""From the text of a path to the winning group of answers. Knows no strategy."""
