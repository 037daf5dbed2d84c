"""ALFWorld: household tasks in text, a native engine for ALFWorld's own game files."""
