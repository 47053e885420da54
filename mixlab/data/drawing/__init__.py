"""How a scene of the embedded set is planned and painted."""
