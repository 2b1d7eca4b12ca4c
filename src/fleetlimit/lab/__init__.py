"""`fleetlimit lab`: a page on which you can try limits. It runs the real algorithms on a simulated clock."""
