"""JSON schemas of answers: checked, and written as the engine reads them."""
