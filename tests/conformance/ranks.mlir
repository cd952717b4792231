// Two replicas of two partitions: what replica_groups name.

module {
  func.func @over_replicas(%x: tensor<1xi32>) -> tensor<1xi32> {
    %y = "stablehlo.all_reduce"(%x) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> ({
      ^bb0(%a: tensor<i32>, %b: tensor<i32>):
        %s = stablehlo.add %a, %b : tensor<i32>
        stablehlo.return %s : tensor<i32>
    }) : (tensor<1xi32>) -> tensor<1xi32>
    return %y : tensor<1xi32>
  }
  func.func @over_partitions(%x: tensor<1xi32>) -> tensor<2xi32> {
    %y:2 = "stablehlo.collective_broadcast"(%x, %x) <{replica_groups = dense<[[1, 0]]> : tensor<1x2xi64>, channel_handle = #stablehlo.channel_handle<handle = 1, type = 0>}> : (tensor<1xi32>, tensor<1xi32>) -> (tensor<1xi32>, tensor<1xi32>)
    %z = stablehlo.concatenate %y#0, %y#1, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
    return %z : tensor<2xi32>
  }
  func.func @over_both(%x: tensor<1xi32>) -> tensor<4xi32> {
    %y = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, channel_handle = #stablehlo.channel_handle<handle = 1, type = 0>}> : (tensor<1xi32>) -> tensor<4xi32>
    return %y : tensor<4xi32>
  }
  func.func @numbers() -> tensor<ui32> {
    %r = stablehlo.replica_id : tensor<ui32>
    %p = stablehlo.partition_id : tensor<ui32>
    %ten = stablehlo.constant dense<10> : tensor<ui32>
    %tens = stablehlo.multiply %r, %ten : tensor<ui32>
    %n = stablehlo.add %tens, %p : tensor<ui32>
    return %n : tensor<ui32>
  }
  func.func @main() {
    %a = stablehlo.constant dense<1> : tensor<1xi32>
    %b = stablehlo.constant dense<2> : tensor<1xi32>
    %c = stablehlo.constant dense<3> : tensor<1xi32>
    %d = stablehlo.constant dense<4> : tensor<1xi32>
    %r:4 = "interpreter.run_parallel"(%a, %b, %c, %d) {programs = [[@over_replicas, @over_replicas], [@over_replicas, @over_replicas]]} : (tensor<1xi32>, tensor<1xi32>, tensor<1xi32>, tensor<1xi32>) -> (tensor<1xi32>, tensor<1xi32>, tensor<1xi32>, tensor<1xi32>)
    check.expect_eq_const %r#0, dense<4> : tensor<1xi32>
    check.expect_eq_const %r#1, dense<6> : tensor<1xi32>
    check.expect_eq_const %r#2, dense<4> : tensor<1xi32>
    check.expect_eq_const %r#3, dense<6> : tensor<1xi32>
    %p:4 = "interpreter.run_parallel"(%a, %b, %c, %d) {programs = [[@over_partitions, @over_partitions], [@over_partitions, @over_partitions]]} : (tensor<1xi32>, tensor<1xi32>, tensor<1xi32>, tensor<1xi32>) -> (tensor<2xi32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>)
    check.expect_eq_const %p#0, dense<[2, 2]> : tensor<2xi32>
    check.expect_eq_const %p#3, dense<[4, 4]> : tensor<2xi32>
    // The results of one run are operands of the next.
    %s:4 = "interpreter.run_parallel"(%r#0, %r#1, %c, %d) {programs = [[@over_both, @over_both], [@over_both, @over_both]]} : (tensor<1xi32>, tensor<1xi32>, tensor<1xi32>, tensor<1xi32>) -> (tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>)
    check.expect_eq_const %s#2, dense<[4, 3, 6, 4]> : tensor<4xi32>
    %n:4 = "interpreter.run_parallel"() {programs = [[@numbers, @numbers], [@numbers, @numbers]]} : () -> (tensor<ui32>, tensor<ui32>, tensor<ui32>, tensor<ui32>)
    check.expect_eq_const %n#1, dense<1> : tensor<ui32>
    check.expect_eq_const %n#2, dense<10> : tensor<ui32>
    check.expect_eq_const %n#3, dense<11> : tensor<ui32>
    func.return
  }
}
