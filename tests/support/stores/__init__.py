"""Real coordination stores in processes of their own."""
