"""The searches of one controller: places, deadlines, what is left over. Knows neither HTTP nor Serve."""
