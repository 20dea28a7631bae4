"""DARTree in a terminal: chat, the living tree, and step-through inspection."""
