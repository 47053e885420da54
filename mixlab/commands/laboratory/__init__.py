"""What the page of `mixlab app` asks for: models looked into, as numbers and pictures."""
