module fencing-gateway.example/fencing-gateway.git/tests/crash/linearizability

go 1.26.0

require github.com/anishathalye/porcupine v1.3.1
