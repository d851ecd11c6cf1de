"""Where each weight meets the signal, and where and by what its product is acted on."""
