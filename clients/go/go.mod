module fencing-gateway.example/fencing-gateway.git/clients/go

go 1.25.0
