"""Training: corpora by the target, drafters and heads from them, and what they are worth."""
