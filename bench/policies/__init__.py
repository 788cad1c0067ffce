"""Every scheduling policy on one engine: swept like for like, explained from the numbers, ranked for one's traffic."""
