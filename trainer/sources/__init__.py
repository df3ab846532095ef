"""Where models come from: folders, the model hub by name, and packages."""
