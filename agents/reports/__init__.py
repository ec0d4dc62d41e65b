"""The report of runs: one HTML file with all that it shows, or the same page while they train."""
