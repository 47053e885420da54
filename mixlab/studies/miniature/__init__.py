"""The study `miniature`: what it trains, and its parts as steps."""
