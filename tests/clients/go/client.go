// A client in Go: asks, approves as a manager would, and sees the run end.
// Run by tests/clients/other_clients.py with the server's address.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"slices"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	pb "countersign/gen/countersign/v1"
)

func check(ok bool, what string, got any) {
	if !ok {
		log.Fatalf("%s: %v", what, got)
	}
}

func must[T any](value T, err error) T {
	check(err == nil, "failed", err)
	return value
}

func follow(
	ctx context.Context, agents pb.AgentServiceClient, run *pb.RunAsyncRequest,
) []*pb.Event {
	stream := must(agents.RunAsync(ctx, run))
	var events []*pb.Event
	for {
		event, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return events
		}
		events = append(events, must(event, err))
	}
}

// calls gives the tools that were called in these events, and the last text.
func calls(events []*pb.Event) (names []string, said string) {
	for _, event := range events {
		for _, part := range event.GetContent().GetParts() {
			switch data := part.Data.(type) {
			case *pb.Part_FunctionCall:
				names = append(names, data.FunctionCall.Name)
			case *pb.Part_Text:
				said = data.Text
			}
		}
	}
	return names, said
}

func answer(call *pb.FunctionCall, status string) *pb.SubmitFunctionResponseRequest {
	response := must(structpb.NewStruct(map[string]any{"status": status}))
	return &pb.SubmitFunctionResponseRequest{
		FunctionResponse: &pb.FunctionResponse{Id: call.Id, Name: call.Name, Response: response},
	}
}

func reason(err error) string {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info.Reason
		}
	}
	return ""
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	plain := grpc.WithTransportCredentials(insecure.NewCredentials())
	connection := must(grpc.NewClient(os.Args[1], plain))
	defer connection.Close()
	agents := pb.NewAgentServiceClient(connection)

	text := &pb.Part_Text{Text: "Please reimburse $200 for conference travel"}
	asked := follow(ctx, agents, &pb.RunAsyncRequest{
		AppName:    "reimbursement_agent",
		UserId:     "ann",
		NewMessage: &pb.Content{Parts: []*pb.Part{{Data: text}}},
		RequestId:  "message-1",
	})
	begin, pause := asked[0].GetBegin(), asked[len(asked)-1].GetEnd()
	check(begin.GetAppName() == "reimbursement_agent", "begin", begin)
	check(pause.GetState() == pb.EndMark_PAUSED, "state", pause)
	check(len(pause.HeldCalls) == 1, "held calls", pause)
	names, _ := calls(asked)
	check(slices.Equal(names, []string{"ask_for_approval"}), "calls", names)
	held := pause.HeldCalls[0]
	amount := held.FunctionCall.Args.Fields["amount"].GetNumberValue()
	check(amount == 200, "amount", amount)

	approval := answer(held.FunctionCall, "approved")
	approval.ExpectedArgsDigest = held.ArgsDigest
	approval.RequestId = "decision-1"
	reply := must(agents.SubmitFunctionResponse(ctx, approval))
	applied := pb.SubmitFunctionResponseResponse_APPLIED
	check(reply.Outcome == applied, "outcome", reply)

	rest := follow(ctx, agents, &pb.RunAsyncRequest{
		AppName:       begin.AppName,
		UserId:        begin.UserId,
		SessionId:     begin.SessionId,
		InvocationId:  begin.InvocationId,
		AfterSequence: reply.AfterSequence,
	})
	end := rest[len(rest)-1].GetEnd()
	check(end.GetState() == pb.EndMark_COMPLETED, "state", end)
	names, said := calls(rest)
	check(slices.Equal(names, []string{"reimburse"}), "calls", names)

	// A second decision comes too late, and its error says so to programs.
	_, err := agents.SubmitFunctionResponse(ctx, answer(held.FunctionCall, "rejected"))
	check(status.Code(err) == codes.FailedPrecondition, "code", err)
	check(reason(err) == "CALL_ALREADY_ANSWERED", "reason", err)
	fmt.Println(said)
}
