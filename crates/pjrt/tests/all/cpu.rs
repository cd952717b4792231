//! Programs on a plugin for CPUs.

use crate::{ADD, DONATE, SUM, client, download, ids, plugin, upload};
use partita_base::{DType, InertType};
use partita_pjrt::{Buffer, Client, CompileOptions, Device, Executable, Plugin, Value};

#[test]
fn a_plugin_states_what_it_is() {
    let Some(plugin) = plugin("a_plugin_states_what_it_is") else { return };
    assert!(plugin.api_version() >= (0, 90));
    assert!(plugin.path().is_absolute());
    let Some(Value::Integers(newest)) = plugin.attribute("stablehlo_current_version") else {
        panic!("{:?}", plugin.attributes());
    };
    assert!(*newest >= vec![1, 0, 0], "{newest:?}");
    assert_eq!(plugin.attribute("no_such_attribute"), None);
    let client = client(&plugin, 3);
    assert_eq!((client.platform(), client.devices().len()), ("cpu", 3));
    assert!(!client.version().is_empty());
    assert_eq!(ids(&client), [0, 1, 2]);
    assert_eq!(client.device(1), client.devices().get(1).cloned());
    assert_eq!(client.device(7), None);
    assert_eq!(client.devices()[0].kind(), "cpu");
    assert_eq!(client.devices()[0].memory_stats().unwrap(), None, "CPUs do not count");
}

#[test]
fn matrices_are_added_on_a_device() {
    let Some(plugin) = plugin("matrices_are_added_on_a_device") else { return };
    let client = client(&plugin, 2);
    for device in client.devices() {
        let program = client.compile(ADD, &CompileOptions::replicas(&[device.id()])).unwrap();
        assert_eq!(program.name(), "add");
        assert_eq!((program.output_count(), program.devices()), (1, vec![device.clone()]));
        assert_eq!(program.outputs().unwrap(), [(DType::F32, vec![2, 3])]);
        let a = upload(&device, &[2, 3], &[1., 2., 3., 4., 5., 6.]);
        let b = upload(&device, &[2, 3], &[10., 20., 30., 40., 50., 60.]);
        let results = program.run(&[[&a, &b]]).unwrap();
        let result = &results[0][0];
        assert_eq!((result.dtype().unwrap(), result.shape().unwrap()), (DType::F32, vec![2, 3]));
        assert_eq!((result.device().unwrap(), result.size_on_device().unwrap()), (device, 24));
        result.wait().unwrap();
        assert_eq!(download(result), [11., 22., 33., 44., 55., 66.]);
        assert_eq!(download(&a), [1., 2., 3., 4., 5., 6.], "what is not donated stays");
        // A program may read one buffer twice.
        assert_eq!(download(&program.run(&[[&a, &a]]).unwrap()[0][0]), [2., 4., 6., 8., 10., 12.]);
    }
}

#[test]
fn replicas_sum_their_values_on_the_devices_in_the_order_given() {
    let Some(plugin) = plugin("replicas_sum_their_values_on_the_devices_in_the_order_given") else { return };
    let client = client(&plugin, 5);
    for order in [[0, 1, 2, 3], [4, 2, 0, 3]] {
        let program = client.compile(SUM, &CompileOptions::replicas(&order)).unwrap();
        assert_eq!(program.devices().iter().map(Device::id).collect::<Vec<_>>(), order);
        let values: Vec<Buffer> = program
            .devices()
            .iter()
            .map(|device| {
                let id = device.id() as f32;
                upload(device, &[4], &[id, 10. * id, 1., 0.])
            })
            .collect();
        let total: f32 = order.iter().map(|id| *id as f32).sum();
        let arguments: Vec<Vec<&Buffer>> = values.iter().map(|buffer| vec![buffer]).collect();
        for (replica, results) in program.run(&arguments).unwrap().iter().enumerate() {
            assert_eq!(results[0].device().unwrap().id(), order[replica]);
            assert_eq!(download(&results[0]), [total, 10. * total, 4., 0.]);
            assert_eq!(results[1].download().unwrap(), (replica as u32).to_ne_bytes());
            assert_eq!(results[1].shape().unwrap(), [0usize; 0]);
            assert!(values[replica].is_deleted().unwrap());
        }
    }
}

/// Layouts of Shardy, which XLA distributes: each device holds half of the rows.
#[test]
fn partitions_are_made_by_xla() {
    let Some(plugin) = plugin("partitions_are_made_by_xla") else { return };
    let client = client(&plugin, 2);
    let text = "module @global {
      sdy.mesh @mesh = <[\"x\"=2]>
      func.func public @main(%a: tensor<4x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{\"x\"}, {}]>})
          -> (tensor<2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) {
        %zero = stablehlo.constant dense<0.0> : tensor<f32>
        %s = stablehlo.reduce(%a init: %zero) applies stablehlo.add across dimensions = [0]
            : (tensor<4x2xf32>, tensor<f32>) -> tensor<2xf32>
        return %s : tensor<2xf32>
      }
    }";
    let program = client.compile(text, &CompileOptions::partitions(&ids(&client))).unwrap();
    assert_eq!(program.inputs(), Some(&[(DType::F32, vec![2, 2])][..]), "types are those on one device");
    assert_eq!(program.outputs().unwrap(), [(DType::F32, vec![2])]);
    let parts: Vec<Buffer> = program
        .devices()
        .iter()
        .enumerate()
        .map(|(at, device)| upload(device, &[2, 2], &[at as f32, 1., 10., 100.]))
        .collect();
    let results = program.run(&[[&parts[0]], [&parts[1]]]).unwrap();
    for result in &results {
        assert_eq!(download(&result[0]), [21., 202.]);
    }
}

#[test]
fn donated_buffers_are_deleted_unless_they_are_kept() {
    let Some(plugin) = plugin("donated_buffers_are_deleted_unless_they_are_kept") else { return };
    let client = client(&plugin, 1);
    let device = &client.devices()[0];
    let program = client.compile(DONATE, &CompileOptions::replicas(&ids(&client))).unwrap();
    let one = upload(device, &[], &[1.]);
    let mut x = upload(device, &[4], &[0., 1., 2., 3.]);
    for step in 1..=5 {
        let next = program.run(&[[&x, &one]]).unwrap().remove(0).remove(0);
        assert!(x.is_deleted().unwrap() && !one.is_deleted().unwrap());
        assert_eq!(
            (x.dtype().unwrap(), x.shape().unwrap()),
            (DType::F32, vec![4]),
            "its type is still known"
        );
        assert!(x.download().unwrap_err().to_string().contains("deleted or donated"));
        assert!(x.wait().is_err() && x.copy_to(device).is_err());
        let error = program.run(&[[&x, &one]]).unwrap_err();
        assert_eq!(error.code, "E480");
        assert!(error.to_string().contains("deleted or donated"), "{error}");
        x = next;
        assert_eq!(download(&x)[3], 3. + step as f32);
    }
    let next = program.run_keeping(&[[&x, &one]], &[0]).unwrap().remove(0).remove(0);
    assert!(!x.is_deleted().unwrap());
    assert_eq!((download(&x), download(&next)), (vec![5., 6., 7., 8.], vec![6., 7., 8., 9.]));
    let memory = program.memory().unwrap().expect("it is counted");
    assert_eq!((memory.arguments, memory.results, memory.aliased), (20, 16, 16));
    assert!(memory.peak > 0);
}

#[test]
fn programs_may_have_no_arguments_no_results_and_no_elements() {
    let Some(plugin) = plugin("programs_may_have_no_arguments_no_results_and_no_elements") else { return };
    let client = client(&plugin, 1);
    let device = &client.devices()[0];
    let compile = |text: &str| client.compile(text, &CompileOptions::replicas(&[0])).unwrap();
    let program = compile(
        "func.func @main() -> tensor<2xf32> {
          %y = stablehlo.constant dense<[1.0, 2.0]> : tensor<2xf32>
          return %y : tensor<2xf32>
        }",
    );
    assert_eq!(download(&program.run(&[[]]).unwrap()[0][0]), [1., 2.]);
    let program = compile("func.func @main(%x: tensor<2xf32>) { return }");
    assert_eq!((program.output_count(), program.outputs().unwrap()), (0, vec![]));
    let x = upload(device, &[2], &[1., 2.]);
    assert!(program.run(&[[&x]]).unwrap()[0].is_empty());
    let program =
        compile("func.func @main(%x: tensor<0x4xf32>) -> tensor<0x4xf32> { return %x : tensor<0x4xf32> }");
    let x = upload(device, &[0, 4], &[]);
    assert_eq!(program.run(&[[&x]]).unwrap()[0][0].shape().unwrap(), [0, 4]);
    // Numbers of arguments to keep that there are not change nothing.
    assert_eq!(program.run_keeping(&[[&x]], &[7, usize::MAX]).unwrap().len(), 1);
}

/// Runs [`SUM`] on values 1, 2, 3, 4 and returns the sum.
fn sum(program: &Executable) -> f32 {
    let values: Vec<Buffer> = program
        .devices()
        .iter()
        .zip([1., 2., 3., 4.])
        .map(|(device, value)| upload(device, &[4], &[value; 4]))
        .collect();
    let arguments: Vec<[&Buffer; 1]> = values.iter().map(|buffer| [buffer]).collect();
    download(&program.run(&arguments).unwrap()[3][0])[0]
}

#[test]
fn saved_executables_run_in_another_client() {
    let Some(plugin) = plugin("saved_executables_run_in_another_client") else { return };
    let (first, second) = (client(&plugin, 4), client(&plugin, 4));
    let program = first.compile(SUM, &CompileOptions::replicas(&ids(&first))).unwrap();
    let saved = program.serialize().unwrap();
    let loaded = second.load(&saved).unwrap();
    assert_eq!((sum(&program), sum(&loaded)), (10., 10.));
    assert_eq!(loaded.name(), "sum");
    assert_eq!(loaded.outputs().unwrap(), [(DType::F32, vec![4]), (DType::U32, vec![])]);
    assert_eq!(loaded.inputs(), Some(&[(DType::F32, vec![4])][..]));
    assert_eq!((loaded.inputs(), loaded.outputs()), (program.inputs(), program.outputs()));
    assert_eq!(loaded.devices(), second.devices());
    // What was loaded can be saved.
    assert_eq!(sum(&first.load(&loaded.serialize().unwrap()).unwrap()), 10.);
}

/// The topology of a client stands for one without devices, which the plugin for CPUs does not create.
#[test]
fn a_program_is_compiled_for_a_topology_and_loaded_by_a_client() {
    let Some(plugin) = plugin("a_program_is_compiled_for_a_topology_and_loaded_by_a_client") else { return };
    let client = client(&plugin, 4);
    let topology = client.topology().unwrap();
    assert_eq!(topology.platform().unwrap(), "cpu");
    assert_eq!(topology.devices().unwrap().len(), 4);
    let compiled = topology.compile(SUM, &CompileOptions::replicas(&ids(&client))).unwrap();
    assert_eq!(compiled.output_count(), 2);
    assert_eq!(sum(&client.load(&compiled.serialize().unwrap()).unwrap()), 10.);
    drop((topology, client));
    assert!(compiled.memory().unwrap().is_some(), "it keeps what it needs alive");
}

#[test]
fn two_clients_work_side_by_side() {
    let Some(plugin) = plugin("two_clients_work_side_by_side") else { return };
    let clients = [client(&plugin, 4), client(&plugin, 4)];
    let programs: Vec<Executable> = clients
        .iter()
        .map(|client| client.compile(SUM, &CompileOptions::replicas(&ids(client))).unwrap())
        .collect();
    assert_eq!(programs.iter().map(sum).collect::<Vec<_>>(), [10., 10.]);
    assert_ne!(clients[0].devices()[0], clients[1].devices()[0]);
    let [first, second] = clients;
    drop(first);
    assert_eq!(sum(&programs[0]), 10., "a program keeps its client alive");
    drop((programs, second));
}

#[test]
fn buffers_outlive_everything_that_made_them() {
    let Some(plugin) = plugin("buffers_outlive_everything_that_made_them") else { return };
    let result = {
        let client = client(&plugin, 1);
        let device = &client.devices()[0];
        let program = client.compile(ADD, &CompileOptions::replicas(&ids(&client))).unwrap();
        let a = upload(device, &[2, 3], &[1.; 6]);
        program.run(&[[&a, &a]]).unwrap().remove(0).remove(0)
    };
    assert_eq!(download(&result), [2.; 6]);
    assert_eq!(result.device().unwrap().client().platform(), "cpu");
}

#[test]
fn buffers_are_copied_between_devices() {
    let Some(plugin) = plugin("buffers_are_copied_between_devices") else { return };
    let client = client(&plugin, 2);
    let devices = client.devices();
    let there = upload(&devices[0], &[3], &[1., 2., 3.]).copy_to(&devices[1]).unwrap();
    assert_eq!((there.device().unwrap(), download(&there)), (devices[1].clone(), vec![1., 2., 3.]));
}

/// Threads compile, upload, run and download with one client, and drop each other's objects.
#[test]
fn threads_share_a_client() {
    let Some(plugin) = plugin("threads_share_a_client") else { return };
    let client = client(&plugin, 4);
    let shared = client.compile(ADD, &CompileOptions::replicas(&[0])).unwrap();
    let work = |number: usize, client: &Client, shared: &Executable| {
        let device = &client.devices()[number];
        let own = client.compile(DONATE, &CompileOptions::replicas(&[device.id()])).unwrap();
        let one = upload(device, &[], &[1.]);
        let mut x = upload(device, &[4], &[number as f32; 4]);
        for _ in 0..50 {
            x = own.run(&[[&x, &one]]).unwrap().remove(0).remove(0);
            let a = upload(&client.devices()[0], &[2, 3], &[number as f32; 6]);
            assert_eq!(download(&shared.run(&[[&a, &a]]).unwrap()[0][0]), [2. * number as f32; 6]);
        }
        x
    };
    let results: Vec<Buffer> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|number| {
                scope.spawn({
                    let (client, shared) = (&client, &shared);
                    move || work(number, client, shared)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (number, result) in results.iter().enumerate() {
        assert_eq!(download(result), [50. + number as f32; 4]);
    }
}

fn every_type() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().chain(InertType::ALL.iter().map(|&inert| DType::Inert(inert)))
}

/// A program with one result of each element type: the plugin must know the types by the same numbers.
#[test]
fn element_types_have_the_numbers_of_the_plugin() {
    let Some(plugin) = plugin("element_types_have_the_numbers_of_the_plugin") else { return };
    let client = client(&plugin, 1);
    for dtype in every_type() {
        let ty = format!("tensor<2x3x{}>", dtype.mlir_name());
        let text = format!("func.func @main(%a: {ty}) -> {ty} {{ return %a : {ty} }}");
        let program = client.compile(&text, &CompileOptions::replicas(&[0])).unwrap();
        let right = vec![(dtype, vec![2, 3])];
        assert_eq!((program.inputs(), program.outputs().unwrap()), (Some(&right[..]), right.clone()));
    }
}

#[test]
fn tensors_of_every_type_come_back_as_they_were() {
    let Some(plugin) = plugin("tensors_of_every_type_come_back_as_they_were") else { return };
    let client = client(&plugin, 1);
    let device = &client.devices()[0];
    for dtype in every_type() {
        for shape in [&[][..], &[1], &[2, 3], &[0, 3]] {
            let count = shape.iter().product::<usize>() * dtype.size_bytes();
            let data: Vec<u8> = (0..count).map(|at| (at % 2) as u8).collect();
            let buffer = client.upload(dtype, shape, &data, device).unwrap();
            assert_eq!((buffer.dtype().unwrap(), buffer.shape().unwrap()), (dtype, shape.to_vec()));
            assert_eq!(buffer.download().unwrap(), data, "{buffer:?}");
        }
    }
}

/// Loading a plugin a second time gives the same functions again.
#[test]
fn a_plugin_may_be_loaded_twice() {
    let Some(first) = plugin("a_plugin_may_be_loaded_twice") else { return };
    let second = Plugin::load(first.path()).unwrap();
    assert_eq!(second.attributes(), first.attributes());
    assert_eq!(client(&second, 1).platform(), "cpu");
}
