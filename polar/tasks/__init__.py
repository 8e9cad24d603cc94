"""Other systems' task sets, as TaskRequests."""
