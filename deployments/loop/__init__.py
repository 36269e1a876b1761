"""What keeps a controller's event loop free, and how late it is."""
