"""The image and docker-compose.yml, in a real engine. `make image-test` runs them."""
