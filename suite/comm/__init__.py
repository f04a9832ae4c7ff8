"""Communication between ranks: rendezvous, point-to-point transports and collectives."""
