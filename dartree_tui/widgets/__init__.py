"""Widgets of the terminal app. Each is told what to show and knows nothing of engines."""
