"""Both papers in miniature on drawn images."""
