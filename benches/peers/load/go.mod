module countersign.peers/load

go 1.22
