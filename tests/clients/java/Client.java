// A client in Java: asks, approves as a manager would, and sees the run end.
// Run by tests/clients/other_clients.py with the server's address.

import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.Struct;
import com.google.protobuf.Value;
import com.google.rpc.ErrorInfo;
import countersign.v1.AgentServiceGrpc;
import countersign.v1.BeginMark;
import countersign.v1.Call;
import countersign.v1.Content;
import countersign.v1.EndMark;
import countersign.v1.Event;
import countersign.v1.FunctionCall;
import countersign.v1.FunctionResponse;
import countersign.v1.Part;
import countersign.v1.RunAsyncRequest;
import countersign.v1.SubmitFunctionResponseRequest;
import countersign.v1.SubmitFunctionResponseResponse;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;

final class Client {
    private final AgentServiceGrpc.AgentServiceBlockingStub agents;

    private Client(ManagedChannel channel) {
        agents = AgentServiceGrpc.newBlockingStub(channel).withDeadlineAfter(1, TimeUnit.MINUTES);
    }

    public static void main(String[] arguments) throws InvalidProtocolBufferException {
        ManagedChannel channel =
                Grpc.newChannelBuilder(arguments[0], InsecureChannelCredentials.create()).build();
        try {
            System.out.println(new Client(channel).run());
        } finally {
            channel.shutdownNow();
        }
    }

    private String run() throws InvalidProtocolBufferException {
        Part text =
                Part.newBuilder().setText("Please reimburse $200 for conference travel").build();
        List<Event> asked =
                follow(
                        RunAsyncRequest.newBuilder()
                                .setAppName("reimbursement_agent")
                                .setUserId("ann")
                                .setNewMessage(Content.newBuilder().addParts(text))
                                .setRequestId("message-1")
                                .build());
        BeginMark begin = asked.get(0).getBegin();
        same("reimbursement_agent", begin.getAppName());
        EndMark pause = asked.get(asked.size() - 1).getEnd();
        same(EndMark.State.PAUSED, pause.getState());
        same(List.of("ask_for_approval"), calls(asked));
        same(1, pause.getHeldCallsCount());
        Call held = pause.getHeldCalls(0);
        FunctionCall call = held.getFunctionCall();
        same(200.0, call.getArgs().getFieldsOrThrow("amount").getNumberValue());

        SubmitFunctionResponseResponse reply =
                agents.submitFunctionResponse(
                        answer(call, "approved")
                                .setExpectedArgsDigest(held.getArgsDigest())
                                .setRequestId("decision-1")
                                .build());
        same(SubmitFunctionResponseResponse.Outcome.APPLIED, reply.getOutcome());

        List<Event> rest =
                follow(
                        RunAsyncRequest.newBuilder()
                                .setAppName(begin.getAppName())
                                .setUserId(begin.getUserId())
                                .setSessionId(begin.getSessionId())
                                .setInvocationId(begin.getInvocationId())
                                .setAfterSequence(reply.getAfterSequence())
                                .build());
        EndMark end = rest.get(rest.size() - 1).getEnd();
        same(EndMark.State.COMPLETED, end.getState());
        same(List.of("reimburse"), calls(rest));

        // A second decision comes too late, and its error says so to programs.
        try {
            agents.submitFunctionResponse(answer(call, "rejected").build());
            throw new AssertionError("the second decision was not refused");
        } catch (StatusRuntimeException error) {
            same(Status.Code.FAILED_PRECONDITION, error.getStatus().getCode());
            same("CALL_ALREADY_ANSWERED", reason(error));
        }
        return said(rest);
    }

    private List<Event> follow(RunAsyncRequest request) {
        List<Event> events = new ArrayList<>();
        agents.runAsync(request).forEachRemaining(events::add);
        return events;
    }

    private static SubmitFunctionResponseRequest.Builder answer(FunctionCall call, String status) {
        Value value = Value.newBuilder().setStringValue(status).build();
        return SubmitFunctionResponseRequest.newBuilder()
                .setFunctionResponse(
                        FunctionResponse.newBuilder()
                                .setId(call.getId())
                                .setName(call.getName())
                                .setResponse(Struct.newBuilder().putFields("status", value)));
    }

    /** The tools that were called in these events. */
    private static List<String> calls(List<Event> events) {
        return parts(events).stream()
                .filter(Part::hasFunctionCall)
                .map(part -> part.getFunctionCall().getName())
                .toList();
    }

    /** The last text in these events. */
    private static String said(List<Event> events) {
        return parts(events).stream()
                .filter(Part::hasText)
                .map(Part::getText)
                .reduce("", (before, text) -> text);
    }

    private static List<Part> parts(List<Event> events) {
        return events.stream()
                .flatMap(event -> event.getContent().getPartsList().stream())
                .toList();
    }

    private static String reason(StatusRuntimeException error)
            throws InvalidProtocolBufferException {
        for (Any detail : StatusProto.fromThrowable(error).getDetailsList()) {
            if (detail.is(ErrorInfo.class)) {
                return detail.unpack(ErrorInfo.class).getReason();
            }
        }
        return null;
    }

    private static void same(Object expected, Object found) {
        if (!expected.equals(found)) {
            throw new AssertionError("expected " + expected + ", found " + found);
        }
    }
}
